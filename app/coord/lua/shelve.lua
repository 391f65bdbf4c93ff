-- shelve(boot, L, worker, ms): puts a log aside that `worker` has reserved and can do nothing with: it takes no slot and is in no queue,
-- and the sweep looks at it again after `ms`. -> OK | COLD | FENCED
local L = ARGV[2]
local v = open(L, 'worker', 'epoch', 'vendor')
if not v then
  return {'COLD'}
end
if v[1] ~= ARGV[3] or v[2] ~= '0' then
  return {'FENCED'}
end
local at = now_ms() + tonumber(ARGV[4])
redis.call('HSET', key('log', L), 'worker', '', 'epoch', '', 'deadline', at)
redis.call('ZADD', key('leases'), at, L)
redis.call('ZREM', key('run', v[3]), L)
redis.call('ZREM', key('q', v[3]), L)
return {'OK'}
