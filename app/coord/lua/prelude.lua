-- Shared by every script. KEYS[1] is the deployment's prefix in braces (one shard), ARGV[1] a random candidate for the boot key.
-- A log is bound to an incarnation: the server's run id plus the boot key, so a restart, failover or flush makes every log cold.
local P = KEYS[1]

local function key(...)
  return P .. ':' .. table.concat({...}, ':')
end

local function incarnation()
  local boot = redis.call('GET', key('boot'))
  if not boot then
    boot = ARGV[1]
    redis.call('SET', key('boot'), boot)
  end
  return string.match(redis.call('INFO', 'server'), 'run_id:(%x+)') .. '.' .. boot
end

local function now_ms()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end

-- The fields named, or nil where the log is cold (absent, or of another incarnation).
local function open(L, ...)
  local v = redis.call('HMGET', key('log', L), 'inc', ...)
  if v[1] ~= incarnation() then
    return nil
  end
  table.remove(v, 1)
  return v
end

-- Puts the log where its status says: in the queue, or out of it; a turn that has ended frees its slot.
local function place(L, status, vendor, not_before)
  if vendor == '' then
    return
  end
  if status ~= 'running' then
    redis.call('ZREM', key('run', vendor), L)
  end
  if status == 'queued' then
    local at = math.max(now_ms(), tonumber(not_before) or 0)
    redis.call('SADD', key('vendors'), vendor)
    redis.call('ZADD', key('q', vendor), 'NX', at, L)
    redis.call('ZREM', key('idle'), L)
    redis.call('PUBLISH', key('wake'), 'queued')
  else
    redis.call('ZREM', key('q', vendor), L)
    if status ~= 'running' then
      redis.call('ZADD', key('idle'), now_ms(), L)
    end
  end
end

-- Whether vendor `v` has a free slot; ARGV from index `i` on: global cap, default cap, then pairs of vendor and cap.
local function free_slots(v, i)
  local total = 0
  for _, each in ipairs(redis.call('SMEMBERS', key('vendors'))) do
    total = total + redis.call('ZCARD', key('run', each))
  end
  local cap = tonumber(ARGV[i + 1])
  for j = i + 2, #ARGV, 2 do
    if ARGV[j] == v then
      cap = tonumber(ARGV[j + 1])
    end
  end
  return math.min(tonumber(ARGV[i]) - total, cap - redis.call('ZCARD', key('run', v)))
end

-- An answer for a call, kept until its worker takes it.
local function answer(call, worker, text, keep_ms)
  local list = key('answers', call)
  redis.call('RPUSH', list, text)
  redis.call('PEXPIRE', list, keep_ms or 60000)
  redis.call('PUBLISH', key('answers', 'ch', worker), call)
end

-- Settles every open call of a connection that is gone.
local function dropped(executor, conn)
  local calls = key('exec', executor, 'calls')
  local all = redis.call('HGETALL', calls)
  for i = 1, #all, 2 do
    local c, worker, sent = string.match(all[i + 1], '^(%S+) (%S+) (%d)$')
    if c == conn then
      redis.call('HDEL', calls, all[i])
      answer(all[i], worker, sent == '1' and 'U' or 'N')
    end
  end
  redis.call('DEL', key('exec', executor, 'q', conn))
  return all
end
