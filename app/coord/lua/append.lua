-- append(boot, L, worker, epoch, key, bodyhash, expect, state, status, not_before, count, {id, event}...)
-- Checked in the order cold, lease, ids, key, expect. `state` comes if and only if `expect` does; "@i" in it becomes the offset of event i.
-- -> OK gen first ver | COLD | FENCED | DUP gen offset id bodyhash | STALE ver
local L, worker, epoch, idem, bodyhash, expect, state = ARGV[2], ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local v = open(L, 'gen', 'next', 'ver', 'worker', 'epoch', 'vendor', 'idsat', 'status')
if not v then
  return {'COLD'}
end
local gen, first, ver = v[1], tonumber(v[2]), tonumber(v[3])
if worker ~= '' and (v[4] ~= worker or v[5] ~= epoch) then
  return {'FENCED'}
end
local ids, older = key('ids', L), key('ids', L, 'older')
local seen = redis.call('HGET', ids, ARGV[12]) or redis.call('HGET', older, ARGV[12])
if seen then
  return {'DUP', gen, seen, ARGV[12], ''}
end
if idem ~= '' then
  local had = redis.call('HGET', key('keys', L), idem)
  if had then
    local g, o, id, hash = string.match(had, '^(%d+) (%d+) (%S+) (%S*)$')
    return {'DUP', g, o, id, hash}
  end
end
local version = gen .. '.' .. ver
if expect ~= '' and expect ~= version then
  return {'STALE', version}
end
local count = tonumber(ARGV[11])
local lines = {'E ' .. gen .. ' ' .. first}
local tail = key('tail', L, gen)
for i = 0, count - 1 do
  local event = ARGV[13 + 2 * i]
  redis.call('XADD', tail, (first + i) .. '-1', 'e', event)
  lines[i + 2] = event
end
local now = now_ms()
-- ids are kept for one to two minutes: longer than any retry of an append lasts
if now - (tonumber(v[7]) or 0) > 60000 then
  if redis.call('EXISTS', ids) == 1 then
    redis.call('RENAME', ids, older)
  else
    redis.call('DEL', older)
  end
  redis.call('HSET', key('log', L), 'idsat', now)
end
redis.call('HSET', ids, ARGV[12], first)
if idem ~= '' then
  redis.call('HSET', key('keys', L), idem, gen .. ' ' .. first .. ' ' .. ARGV[12] .. ' ' .. bodyhash)
end
redis.call('HSET', key('log', L), 'next', first + count)
if expect ~= '' then
  ver = ver + 1
  state = string.gsub(state, '"@(%d+)"', function(i) return string.format('%d', first + i) end)
  redis.call('HSET', key('log', L), 'ver', ver, 'state', state, 'status', ARGV[9])
  -- one more input for a turn that is about to begin: its slot stays taken
  if not (ARGV[9] == 'queued' and v[8] == 'queued' and redis.call('ZSCORE', key('run', v[6]), L)) then
    place(L, ARGV[9], v[6], ARGV[10])
  end
end
redis.call('PUBLISH', key('ch', L), table.concat(lines, '\n'))
return {'OK', gen, first, gen .. '.' .. ver}
