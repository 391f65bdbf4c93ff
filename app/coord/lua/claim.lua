-- claim(boot, worker, lease_ms, affinity_ms, nvendors, vendor..., global, default, {vendor, cap}...)
-- Reserves the oldest queued log of these vendors that the caps allow, with epoch 0: no one can append as a worker until `activate`.
-- -> OK L vendor gen | RETRY ms | NONE
local worker, now, inc = ARGV[2], now_ms(), incarnation()
local n = tonumber(ARGV[5])
local caps = 6 + n
local found, retry = {}, nil
for i = 6, 5 + n do
  local vendor = ARGV[i]
  if free_slots(vendor, caps) > 0 then
    local rows = redis.call('ZRANGEBYSCORE', key('q', vendor), '-inf', now, 'WITHSCORES', 'LIMIT', 0, 64)
    for j = 1, #rows, 2 do
      found[#found + 1] = {rows[j], tonumber(rows[j + 1]), vendor}
    end
  end
end
table.sort(found, function(a, b)
  if a[2] == b[2] then
    return a[1] < b[1]
  end
  return a[2] < b[2]
end)
for _, row in ipairs(found) do
  local L, at, vendor = row[1], row[2], row[3]
  local v = redis.call('HMGET', key('log', L), 'inc', 'gen', 'worker', 'last', 'status')
  if v[1] ~= inc or v[5] ~= 'queued' then
    redis.call('ZREM', key('q', vendor), L)
  elseif v[3] == '' then
    local wait = at + tonumber(ARGV[4]) - now
    if v[4] and v[4] ~= worker and wait > 0 then
      retry = math.min(retry or wait, wait)
    else
      local deadline = now + tonumber(ARGV[3])
      redis.call('HSET', key('log', L), 'worker', worker, 'epoch', '0', 'deadline', deadline)
      redis.call('ZADD', key('leases'), deadline, L)
      redis.call('ZADD', key('run', vendor), now, L)
      redis.call('ZREM', key('q', vendor), L)
      return {'OK', L, vendor, v[2]}
    end
  end
end
if retry then
  return {'RETRY', tostring(retry)}
end
return {'NONE'}
