output "load_balancer" {
  description = "Point the public name here."
  value       = aws_lb.api.dns_name
}

output "redis_host" {
  description = "Host for the secret that holds BYRE_REDIS_URL: rediss://:TOKEN@HOST:6379/0"
  value       = aws_elasticache_replication_group.redis.primary_endpoint_address
}

output "bucket" {
  description = "The object store."
  value       = aws_s3_bucket.store.id
}
