-- revoke(boot, L, grace_ms): whoever holds the lease is fenced from now on. If what was to follow doesn't, the sweep settles the log after
-- `grace_ms`. -> OK | COLD
local v = open(ARGV[2], 'status')
if not v then
  return {'COLD'}
end
local at = now_ms() + tonumber(ARGV[3])
redis.call('HSET', key('log', ARGV[2]), 'worker', '', 'epoch', '', 'deadline', at)
redis.call('ZADD', key('leases'), at, ARGV[2])
redis.call('PUBLISH', key('ch', ARGV[2]), 'R')
return {'OK'}
