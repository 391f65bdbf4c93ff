-- release(boot, L, worker, epoch, force): gives the lease back; refused while an input waits that may run now, unless forced (then it is
-- queued again), and always while a turn is open. -> OK | WORK | OPEN | COLD | FENCED
local L = ARGV[2]
local v = open(L, 'worker', 'epoch', 'status', 'vendor')
if not v then
  return {'COLD'}
end
if v[1] ~= ARGV[3] or v[2] ~= ARGV[4] then
  return {'FENCED'}
end
if v[3] == 'running' then
  return {'OPEN'}
end
if v[3] == 'queued' then
  local at = redis.call('ZSCORE', key('q', v[4]), L)
  if ARGV[5] ~= '1' and (not at or tonumber(at) <= now_ms()) then
    return {'WORK'}
  end
end
redis.call('HSET', key('log', L), 'worker', '', 'last', ARGV[3])
redis.call('ZREM', key('leases'), L)
place(L, v[3], v[4], 0)
return {'OK'}
