-- exec_current(boot, executor): whether it has a live connection
return redis.call('EXISTS', key('exec', ARGV[2]))
