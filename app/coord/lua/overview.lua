-- overview(boot, prefix of names, most, L...): what waits and what runs among the logs whose names begin so, and the status of each L.
-- -> now {L vendor at}... queued, {L vendor at status}... with a slot, {status}...
local prefix, most = ARGV[2], tonumber(ARGV[3])
local queued, running, states = {}, {}, {}
for _, vendor in ipairs(redis.call('SMEMBERS', key('vendors'))) do
  local rows = redis.call('ZRANGE', key('q', vendor), 0, most - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    if string.sub(rows[i], 1, #prefix) == prefix then
      queued[#queued + 1] = {rows[i], vendor, rows[i + 1]}
    end
  end
  rows = redis.call('ZRANGE', key('run', vendor), 0, most - 1, 'WITHSCORES')
  for i = 1, #rows, 2 do
    if string.sub(rows[i], 1, #prefix) == prefix then
      running[#running + 1] = {rows[i], vendor, rows[i + 1], redis.call('HGET', key('log', rows[i]), 'status') or ''}
    end
  end
end
for i = 4, #ARGV do
  states[#states + 1] = redis.call('HGET', key('log', ARGV[i]), 'status') or ''
end
return {tostring(now_ms()), queued, running, states}
