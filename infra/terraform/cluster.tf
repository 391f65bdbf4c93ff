locals {
  settings = merge({
    BYRE_OBJECT_STORE = "s3://${aws_s3_bucket.store.id}"
    BYRE_S3_REGION    = data.aws_region.current.name
    BYRE_PUBLIC_URL   = var.public_url
    BYRE_VENDOR       = var.vendor
    BYRE_LOG_FORMAT   = "json"
  }, var.settings)

  worker_settings = merge(local.settings, {
    BYRE_WORKER_SLOTS  = tostring(var.worker_slots)
    BYRE_DRAIN_SECONDS = tostring(var.drain_seconds)
    BYRE_WORKSPACES    = "/workspaces"
  })

  secrets = {
    BYRE_SECRET_KEY = var.secret_key_arn
    BYRE_REDIS_URL  = var.redis_url_arn
  }
}

resource "aws_ecs_cluster" "byre" {
  name = var.name

  setting {
    name  = "containerInsights"
    value = "enabled"
  }
}

resource "aws_cloudwatch_log_group" "byre" {
  name              = "/byre/${var.name}"
  retention_in_days = var.log_days
}

resource "aws_ecs_cluster_capacity_providers" "byre" {
  cluster_name       = aws_ecs_cluster.byre.name
  capacity_providers = ["FARGATE", aws_ecs_capacity_provider.workers.name]
}
