-- seed(boot, L, gen, inc, next, state, status, not_before, epoch, vendor, astate, asha, grace_ms, nkeys, nids, {key, value}..., {id, offset}...)
-- Only into the incarnation that the chain names, and only over a log that is absent, of another incarnation, or of a lower generation.
-- -> OK | HAVE | WRONG_INC
local L, gen = ARGV[2], ARGV[3]
local inc = incarnation()
if ARGV[4] ~= inc then
  return {'WRONG_INC'}
end
local log = key('log', L)
local old = redis.call('HMGET', log, 'inc', 'gen', 'vendor')
if old[1] == inc and tonumber(old[2]) >= tonumber(gen) then
  return {'HAVE'}
end
if old[2] then
  redis.call('DEL', key('tail', L, old[2]))
end
redis.call('DEL', log, key('ids', L), key('ids', L, 'older'), key('keys', L), key('tail', L, gen))
local vendor = ARGV[10]
redis.call('HSET', log, 'inc', inc, 'gen', gen, 'next', ARGV[5], 'arch', ARGV[5], 'ver', 0, 'state', ARGV[6], 'status', ARGV[7],
  'epoch', ARGV[9], 'worker', '', 'vendor', vendor, 'astate', ARGV[11], 'asha', ARGV[12], 'idsat', now_ms())
local i = 16
for _ = 1, tonumber(ARGV[14]) do
  redis.call('HSET', key('keys', L), ARGV[i], ARGV[i + 1])
  i = i + 2
end
for _ = 1, tonumber(ARGV[15]) do
  redis.call('HSET', key('ids', L), ARGV[i], ARGV[i + 1])
  i = i + 2
end
if vendor ~= '' then
  redis.call('ZREM', key('q', vendor), L)
  redis.call('ZREM', key('run', vendor), L)
end
redis.call('ZREM', key('leases'), L)
place(L, ARGV[7], vendor, ARGV[8])
if ARGV[7] == 'running' then
  -- its worker may still live: it is swept once that worker's own deadline has surely passed
  redis.call('HSET', log, 'deadline', now_ms() + tonumber(ARGV[13]))
  redis.call('ZADD', key('leases'), now_ms() + tonumber(ARGV[13]), L)
end
return {'OK'}
