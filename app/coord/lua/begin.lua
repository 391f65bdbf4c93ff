-- begin(boot, L, worker, epoch, global, default, {vendor, cap}...): a slot for the next turn of a log whose lease the worker holds.
-- Sessions that queued earlier come first. -> OK | FULL | COLD | FENCED
local L = ARGV[2]
local v = open(L, 'worker', 'epoch', 'vendor', 'status')
if not v then
  return {'COLD'}
end
if v[1] ~= ARGV[3] or v[2] ~= ARGV[4] then
  return {'FENCED'}
end
if redis.call('ZSCORE', key('run', v[3]), L) then
  return {'OK'}
end
local at = redis.call('ZSCORE', key('q', v[3]), L)
local now = now_ms()
if not at or tonumber(at) > now then
  return {'FULL'}
end
if free_slots(v[3], 5) <= redis.call('ZRANK', key('q', v[3]), L) then
  return {'FULL'}
end
redis.call('ZADD', key('run', v[3]), now, L)
redis.call('ZREM', key('q', v[3]), L)
return {'OK'}
