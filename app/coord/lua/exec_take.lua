-- exec_take(boot, executor, connection, count, ttl_ms): takes commands for this connection; a call counts as dispatched from here on. The
-- connection lives on for ttl_ms. -> a list of commands, 'GONE' if another connection is current, 'NONE' if none is
local now = key('exec', ARGV[2])
local current = redis.call('GET', now)
if not current then
  return 'NONE'
end
if current ~= ARGV[3] then
  return 'GONE'
end
redis.call('PEXPIRE', now, ARGV[5])
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
