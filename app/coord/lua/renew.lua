-- renew(boot, worker, lease_ms, {L, epoch}...): -> one of OK, COLD, FENCED for each
local out = {}
local deadline = now_ms() + tonumber(ARGV[3])
for i = 4, #ARGV, 2 do
  local v = open(ARGV[i], 'worker', 'epoch')
  if not v then
    out[#out + 1] = 'COLD'
  elseif v[1] ~= ARGV[2] or v[2] ~= ARGV[i + 1] then
    out[#out + 1] = 'FENCED'
  else
    redis.call('HSET', key('log', ARGV[i]), 'deadline', deadline)
    redis.call('ZADD', key('leases'), deadline, ARGV[i])
    out[#out + 1] = 'OK'
  end
end
return out
