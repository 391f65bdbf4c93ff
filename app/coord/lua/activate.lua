-- activate(boot, L, worker, epoch, lease_ms): the reservation becomes a lease with its epoch. -> OK | COLD | FENCED
local v = open(ARGV[2], 'worker', 'epoch')
if not v then
  return {'COLD'}
end
if v[1] ~= ARGV[3] or (v[2] ~= '0' and v[2] ~= ARGV[4]) then
  return {'FENCED'}
end
local deadline = now_ms() + tonumber(ARGV[5])
redis.call('HSET', key('log', ARGV[2]), 'epoch', ARGV[4], 'deadline', deadline)
redis.call('ZADD', key('leases'), deadline, ARGV[2])
return {'OK'}
