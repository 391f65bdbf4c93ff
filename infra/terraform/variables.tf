variable "name" {
  description = "Name of the deployment; the first part of the name of everything here."
  type        = string
  default     = "byre"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,20}$", var.name))
    error_message = "The name must be 2 to 21 lower-case letters, digits or dashes, and begin with a letter."
  }
}

variable "image" {
  description = "Image with tag or digest, built from the Dockerfile of this repository."
  type        = string
}

variable "vpc_id" {
  description = "VPC that everything runs in."
  type        = string
}

variable "public_subnets" {
  description = "Subnets of the load balancer, in at least two zones."
  type        = list(string)
}

variable "private_subnets" {
  description = "Subnets of tasks, workers and Redis, in at least two zones, with a way out to S3, ECR, logs and the model vendors."
  type        = list(string)
}

variable "certificate_arn" {
  description = "Certificate of the public name."
  type        = string
}

variable "public_url" {
  description = "Address under which clients reach the API, https://..."
  type        = string

  validation {
    condition     = startswith(var.public_url, "https://")
    error_message = "The public address must begin with https://."
  }
}

variable "secret_key_arn" {
  description = "Secrets Manager secret that holds BYRE_SECRET_KEY as its whole text (openssl rand -hex 32)."
  type        = string
}

variable "redis_url_arn" {
  description = "Secrets Manager secret that holds the whole BYRE_REDIS_URL (rediss://:TOKEN@HOST:6379/0), written after the first apply."
  type        = string
}

variable "redis_auth_token" {
  description = "Password of Redis, 16 to 128 characters without @, quotes or slashes."
  type        = string
  sensitive   = true
}

variable "redis_node_type" {
  description = "Size of each of the two Redis nodes."
  type        = string
  default     = "cache.t4g.small"
}

variable "api_tasks" {
  description = "Fewest and most API tasks."
  type        = object({ min = number, max = number })
  default     = { min = 2, max = 10 }
}

variable "workers" {
  description = "Fewest and most worker machines. An idle machine is stopped only when it runs no turn."
  type        = object({ min = number, max = number })
  default     = { min = 1, max = 10 }
}

variable "worker_instance_type" {
  description = "Machine of a worker. An agent takes about 300 MB, so memory bounds the slots."
  type        = string
  default     = "m6i.xlarge"
}

variable "worker_disk_gib" {
  description = "Disk of a worker, for mirrors, worktrees and agents' files."
  type        = number
  default     = 200
}

variable "worker_slots" {
  description = "Sessions that one worker runs at once (BYRE_WORKER_SLOTS)."
  type        = number
  default     = 8
}

variable "drain_seconds" {
  description = "Time for running turns when a worker is told to stop (BYRE_DRAIN_SECONDS). ECS allows 120 s in all, of which 20 are kept for the rest."
  type        = number
  default     = 60

  validation {
    condition     = var.drain_seconds >= 0 && var.drain_seconds <= 100
    error_message = "ECS stops a task for good after 120 s, so at most 100 can be given to turns."
  }
}

variable "vendor" {
  description = "Harness of byre agent sessions (BYRE_VENDOR)."
  type        = string
  default     = "claude"
}

variable "settings" {
  description = "Further BYRE_* settings of both kinds of process, see docs/configuration.md. Not for secrets."
  type        = map(string)
  default     = {}
}

variable "worker_secrets" {
  description = "Further environment variables of workers, from Secrets Manager: name to ARN. Model keys, for example."
  type        = map(string)
  default     = {}
}

variable "log_days" {
  description = "Days that logs are kept."
  type        = number
  default     = 30
}
