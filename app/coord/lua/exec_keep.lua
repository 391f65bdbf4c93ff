-- exec_keep(boot, executor, connection, ttl_ms): the connection lives. -> 1, or 0 if it isn't the current one any more
if redis.call('GET', key('exec', ARGV[2])) ~= ARGV[3] then
  return 0
end
redis.call('PEXPIRE', key('exec', ARGV[2]), ARGV[4])
return 1
