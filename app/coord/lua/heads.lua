-- heads(boot, L...): where each of these logs ends -> {gen, next or -1, -1 where it is cold}...
local out = {}
for i = 2, #ARGV do
  local v = open(ARGV[i], 'gen', 'next') or {'-1', '-1'}
  out[#out + 1] = v[1]
  out[#out + 1] = v[2]
end
return out
