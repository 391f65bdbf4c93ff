-- exec_reply(boot, executor, connection, call id, kind, payload, keep_ms, most): progress (P) or the result (R) of a call.
-- -> 1, 0 if the connection is stale or the call isn't open, 2 if that much progress waits already
local calls = key('exec', ARGV[2], 'calls')
local entry = redis.call('HGET', calls, ARGV[4])
if not entry or redis.call('GET', key('exec', ARGV[2])) ~= ARGV[3] then
  return 0
end
local conn, worker = string.match(entry, '^(%S+) (%S+) %d$')
if conn ~= ARGV[3] then
  return 0
end
if ARGV[5] == 'P' and redis.call('LLEN', key('answers', ARGV[4])) >= tonumber(ARGV[8]) then
  return 2
end
if ARGV[5] == 'R' then
  redis.call('HDEL', calls, ARGV[4])
end
answer(ARGV[4], worker, ARGV[5] .. ARGV[6], ARGV[7])
return 1
