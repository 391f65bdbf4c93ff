-- exec_call(boot, executor, call id, worker, command, ttl_ms, most): queues a call for the current connection. -> the connection, '' if there is
-- none, or 'FULL' if that many calls are open
local conn = redis.call('GET', key('exec', ARGV[2]))
if not conn then
  return ''
end
local calls = key('exec', ARGV[2], 'calls')
if redis.call('HLEN', calls) >= tonumber(ARGV[7]) then
  return 'FULL'
end
redis.call('HSET', calls, ARGV[3], conn .. ' ' .. ARGV[4] .. ' 0')
if redis.call('PTTL', calls) < tonumber(ARGV[6]) then
  redis.call('PEXPIRE', calls, ARGV[6])
end
local queue = key('exec', ARGV[2], 'q', conn)
redis.call('RPUSH', queue, ARGV[3] .. ' ' .. ARGV[5])
if redis.call('PTTL', queue) < tonumber(ARGV[6]) then
  redis.call('PEXPIRE', queue, ARGV[6])
end
redis.call('PUBLISH', key('exec', ARGV[2], 'ch'), 'call')
return conn
