-- exec_cancel(boot, executor, call id, command, ttl_ms): nobody waits for this call any more; if it was sent, its connection is told.
-- -> 1 if it was sent, 2 if it wasn't and now never will be, 0 if it wasn't open
local calls = key('exec', ARGV[2], 'calls')
local entry = redis.call('HGET', calls, ARGV[3])
if not entry then
  return 0
end
redis.call('HDEL', calls, ARGV[3])
local conn, _, sent = string.match(entry, '^(%S+) (%S+) (%d)$')
if sent ~= '1' then
  return 2
end
local queue = key('exec', ARGV[2], 'q', conn)
redis.call('RPUSH', queue, '- ' .. ARGV[4])
redis.call('PEXPIRE', queue, ARGV[5])
redis.call('PUBLISH', key('exec', ARGV[2], 'ch'), 'call')
return 1
