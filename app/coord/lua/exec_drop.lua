-- exec_drop(boot, executor, connection, keep_ms): the connection is gone ('' : whichever is current). Calls that it had get their answers:
-- unknown (U) if they were dispatched, not sent (N) if they still waited.
local now = key('exec', ARGV[2])
local current = redis.call('GET', now)
local conn = ARGV[3]
if conn == '' then
  conn = current
end
if not conn then
  return 0
end
if current == conn then
  redis.call('DEL', now)
end
dropped(ARGV[2], conn)
redis.call('PUBLISH', key('exec', ARGV[2], 'ch'), 'dropped ' .. conn)
return 1
