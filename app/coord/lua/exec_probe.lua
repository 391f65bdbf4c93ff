-- exec_probe(boot, executor, call id): settles the call if its connection ran out without a word. -> 1 if it is open or answered, 0 if nobody knows it
local calls = key('exec', ARGV[2], 'calls')
local entry = redis.call('HGET', calls, ARGV[3])
if not entry then
  return redis.call('EXISTS', key('answers', ARGV[3]))
end
local conn, worker, sent = string.match(entry, '^(%S+) (%S+) (%d)$')
if redis.call('GET', key('exec', ARGV[2])) ~= conn then
  redis.call('HDEL', calls, ARGV[3])
  answer(ARGV[3], worker, sent == '1' and 'U' or 'N')
end
return 1
