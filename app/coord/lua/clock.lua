-- clock(boot): unix milliseconds on the clock by which queues and leases are timed
return string.format('%d', now_ms())
