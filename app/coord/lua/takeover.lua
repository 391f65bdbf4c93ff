-- takeover(boot, worker, lease_ms): reserves the log whose lease expired first, like a claim. Cold ones are forgotten: recovery brings them back.
-- -> OK L vendor gen status | NONE
local now, inc = now_ms(), incarnation()
for _, L in ipairs(redis.call('ZRANGEBYSCORE', key('leases'), '-inf', now, 'LIMIT', 0, 64)) do
  local v = redis.call('HMGET', key('log', L), 'inc', 'vendor', 'gen', 'status')
  if v[1] ~= inc then
    redis.call('ZREM', key('leases'), L)
  else
    local deadline = now + tonumber(ARGV[3])
    redis.call('HSET', key('log', L), 'worker', ARGV[2], 'epoch', '0', 'deadline', deadline)
    redis.call('ZADD', key('leases'), deadline, L)
    return {'OK', L, v[2], v[3], v[4]}
  end
end
return {'NONE'}
