-- exec_answers(boot, call id): takes what came for a call, in order: P progress, R result, U unknown outcome, N not sent
local list = key('answers', ARGV[2])
local out = redis.call('LRANGE', list, 0, -1)
redis.call('DEL', list)
return out
