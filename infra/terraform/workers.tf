# Workers run on machines of their own, one on each: agents need memory, and a disk whose mirrors and worktrees outlive a deployment.

data "aws_ssm_parameter" "machine_image" {
  name = "/aws/service/ecs/optimized-ami/amazon-linux-2023/recommended/image_id"
}

resource "aws_launch_template" "worker" {
  name_prefix            = "${var.name}-worker-"
  image_id               = data.aws_ssm_parameter.machine_image.value
  instance_type          = var.worker_instance_type
  vpc_security_group_ids = [aws_security_group.worker.id]
  update_default_version = true

  iam_instance_profile {
    arn = aws_iam_instance_profile.machine.arn
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size           = var.worker_disk_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1 # what runs in a container can't reach the machine's role
  }

  user_data = base64encode(<<-SCRIPT
    #!/bin/bash
    mkdir -p /var/lib/byre/workspaces
    chown 10001:10001 /var/lib/byre/workspaces
    {
      echo "ECS_CLUSTER=${aws_ecs_cluster.byre.name}"
      echo "ECS_CONTAINER_STOP_TIMEOUT=120s"
      echo "ECS_DISABLE_PRIVILEGED=true"
    } >> /etc/ecs/ecs.config
  SCRIPT
  )

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_autoscaling_group" "workers" {
  name_prefix           = "${var.name}-workers-"
  vpc_zone_identifier   = var.private_subnets
  min_size              = var.workers.min
  max_size              = var.workers.max
  protect_from_scale_in = true # ECS drains a machine before it lets it go

  launch_template {
    id      = aws_launch_template.worker.id
    version = aws_launch_template.worker.latest_version
  }

  tag {
    key                 = "AmazonECSManaged"
    value               = "true"
    propagate_at_launch = true
  }

  lifecycle {
    create_before_destroy = true
    ignore_changes        = [desired_capacity]
  }
}

resource "aws_ecs_capacity_provider" "workers" {
  name = "${var.name}-workers"

  auto_scaling_group_provider {
    auto_scaling_group_arn         = aws_autoscaling_group.workers.arn
    managed_termination_protection = "ENABLED"
    managed_draining               = "ENABLED"

    managed_scaling {
      status          = "ENABLED"
      target_capacity = 100
    }
  }
}

resource "aws_ecs_task_definition" "worker" {
  family                   = "${var.name}-worker"
  requires_compatibilities = ["EC2"]
  network_mode             = "bridge" # with the hop limit above, agents can't reach the machine's role
  execution_role_arn       = aws_iam_role.execution.arn
  task_role_arn            = aws_iam_role.task.arn

  volume {
    name      = "workspaces"
    host_path = "/var/lib/byre/workspaces"
  }

  container_definitions = jsonencode([{
    name              = "worker"
    image             = var.image
    command           = ["worker"]
    essential         = true
    memoryReservation = 1024
    stopTimeout       = 120
    environment       = [for name, value in local.worker_settings : { name = name, value = value }]
    secrets           = [for name, arn in merge(local.secrets, var.worker_secrets) : { name = name, valueFrom = arn }]
    mountPoints       = [{ sourceVolume = "workspaces", containerPath = "/workspaces" }]
    ulimits           = [{ name = "nofile", softLimit = 65536, hardLimit = 65536 }]

    logConfiguration = {
      logDriver = "awslogs"
      options = {
        awslogs-group         = aws_cloudwatch_log_group.byre.name
        awslogs-region        = data.aws_region.current.name
        awslogs-stream-prefix = "worker"
      }
    }
  }])
}

resource "aws_ecs_service" "worker" {
  depends_on                         = [aws_ecs_cluster_capacity_providers.byre]
  name                               = "worker"
  cluster                            = aws_ecs_cluster.byre.id
  task_definition                    = aws_ecs_task_definition.worker.arn
  desired_count                      = var.workers.min
  deployment_minimum_healthy_percent = 0 # a drained worker's work waits in the queue for its successor on the same machine
  deployment_maximum_percent         = 100

  capacity_provider_strategy {
    capacity_provider = aws_ecs_capacity_provider.workers.name
    weight            = 1
  }

  placement_constraints {
    type = "distinctInstance"
  }

  lifecycle {
    ignore_changes = [desired_count] # the scaling below decides
  }
}

resource "aws_appautoscaling_target" "workers" {
  service_namespace  = "ecs"
  resource_id        = "service/${aws_ecs_cluster.byre.name}/${aws_ecs_service.worker.name}"
  scalable_dimension = "ecs:service:DesiredCount"
  min_capacity       = var.workers.min
  max_capacity       = var.workers.max
}

resource "aws_appautoscaling_policy" "workers_memory" {
  name               = "memory"
  policy_type        = "TargetTrackingScaling"
  service_namespace  = aws_appautoscaling_target.workers.service_namespace
  resource_id        = aws_appautoscaling_target.workers.resource_id
  scalable_dimension = aws_appautoscaling_target.workers.scalable_dimension

  target_tracking_scaling_policy_configuration {
    target_value       = 70
    scale_in_cooldown  = 900 # a machine that is taken away takes its mirrors and warm agents with it
    scale_out_cooldown = 60

    predefined_metric_specification {
      predefined_metric_type = "ECSServiceAverageMemoryUtilization"
    }
  }
}
