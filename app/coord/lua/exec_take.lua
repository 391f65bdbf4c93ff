-- exec_take(boot, executor, connection, count): takes commands for this connection; a call counts as dispatched from here on.
-- -> 'GONE' if another connection is current, else a list of commands
if redis.call('GET', key('exec', ARGV[2])) ~= ARGV[3] then
  return 'GONE'
end
local out = {}
for _ = 1, tonumber(ARGV[4]) do
  local item = redis.call('LPOP', key('exec', ARGV[2], 'q', ARGV[3]))
  if not item then
    break
  end
  local id, command = string.match(item, '^(%S+) (.*)$')
  local calls = key('exec', ARGV[2], 'calls')
  local entry = redis.call('HGET', calls, id)
  if id == '-' then
    out[#out + 1] = command
  elseif entry then
    redis.call('HSET', calls, id, (string.gsub(entry, ' 0$', ' 1')))
    out[#out + 1] = command
  end
end
return out
