-- enter(boot, group, L): L may work in what a group of logs shares (a task's worktree), unless the one that was there last still holds its lease;
-- that one is asked to let go. -> OK | BUSY
local place = key('group', ARGV[2])
local other = redis.call('GET', place)
if other and other ~= ARGV[3] then
  local v = redis.call('HMGET', key('log', other), 'inc', 'worker', 'deadline')
  if v[1] == incarnation() and v[2] ~= '' and tonumber(v[3] or 0) > now_ms() then
    redis.call('PUBLISH', key('ch', other), 'G')
    return {'BUSY'}
  end
end
redis.call('SET', place, ARGV[3])
return {'OK'}
