data "aws_region" "current" {}

data "aws_iam_policy_document" "tasks" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ecs-tasks.amazonaws.com"]
    }
  }
}

# What ECS itself does for a task: pull the image, write logs, read the secrets that become its environment.
resource "aws_iam_role" "execution" {
  name_prefix        = "${var.name}-execution-"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
}

resource "aws_iam_role_policy_attachment" "execution" {
  role       = aws_iam_role.execution.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonECSTaskExecutionRolePolicy"
}

data "aws_iam_policy_document" "secrets" {
  statement {
    actions   = ["secretsmanager:GetSecretValue"]
    resources = concat([var.secret_key_arn, var.redis_url_arn], values(var.worker_secrets))
  }
}

resource "aws_iam_role_policy" "secrets" {
  name   = "secrets"
  role   = aws_iam_role.execution.id
  policy = data.aws_iam_policy_document.secrets.json
}

# What Byre may do: its bucket, nothing else. Agents run beside the worker, so a worker's role must not reach further than this either.
resource "aws_iam_role" "task" {
  name_prefix        = "${var.name}-task-"
  assume_role_policy = data.aws_iam_policy_document.tasks.json
}

data "aws_iam_policy_document" "store" {
  statement {
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject"]
    resources = ["${aws_s3_bucket.store.arn}/*"]
  }

  statement {
    actions   = ["s3:ListBucket"] # without it, an absent key answers 403 instead of 404
    resources = [aws_s3_bucket.store.arn]
  }
}

resource "aws_iam_role_policy" "store" {
  name   = "store"
  role   = aws_iam_role.task.id
  policy = data.aws_iam_policy_document.store.json
}

# The worker machines join the cluster.
data "aws_iam_policy_document" "machines" {
  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["ec2.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "machine" {
  name_prefix        = "${var.name}-machine-"
  assume_role_policy = data.aws_iam_policy_document.machines.json
}

resource "aws_iam_role_policy_attachment" "machine" {
  role       = aws_iam_role.machine.name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEC2ContainerServiceforEC2Role"
}

resource "aws_iam_instance_profile" "machine" {
  name_prefix = "${var.name}-machine-"
  role        = aws_iam_role.machine.name
}
