-- forget(boot, idle_ms): drops one log from Redis that nobody has used for `idle_ms`, is archived, leased by no one and has nothing queued.
-- One whose tail isn't archived stays, is named, and comes up again in a minute. -> OK L | BEHIND L | NONE
local now, inc = now_ms(), incarnation()
for _, L in ipairs(redis.call('ZRANGEBYSCORE', key('idle'), '-inf', now - tonumber(ARGV[2]), 'LIMIT', 0, 64)) do
  redis.call('ZREM', key('idle'), L)
  local v = redis.call('HMGET', key('log', L), 'gen', 'arch', 'next', 'worker', 'status', 'inc')
  if v[1] and v[4] == '' and v[5] ~= 'running' and v[5] ~= 'queued' then
    if v[2] ~= v[3] and v[6] == inc then
      redis.call('ZADD', key('idle'), now - tonumber(ARGV[2]) + 60000, L)
      return {'BEHIND', L}
    end
    redis.call('DEL', key('log', L), key('tail', L, v[1]), key('ids', L), key('ids', L, 'older'), key('keys', L))
    redis.call('ZREM', key('leases'), L)
    return {'OK', L}
  end
end
return {'NONE'}
