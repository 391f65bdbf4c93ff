resource "aws_lb" "api" {
  name               = var.name
  load_balancer_type = "application"
  security_groups    = [aws_security_group.balancer.id]
  subnets            = var.public_subnets
  # A stream speaks at least every 10 s, and the API keeps idle connections for 75 s: longer than this, so that it is never the API that
  # closes a connection on which a request is just arriving.
  idle_timeout               = 60
  drop_invalid_header_fields = true
}

resource "aws_lb_target_group" "api" {
  name_prefix          = substr("${var.name}-", 0, 6)
  port                 = 8080
  protocol             = "HTTP"
  target_type          = "ip"
  vpc_id               = var.vpc_id
  deregistration_delay = 10 # streams end by themselves within 3 s of a stop, and requests are short
  # Streams stay for hours: a new task gets its share only if it is the one with the fewest open requests.
  load_balancing_algorithm_type = "least_outstanding_requests"

  health_check {
    path                = "/readyz"
    matcher             = "200"
    interval            = 10
    timeout             = 5
    healthy_threshold   = 2
    unhealthy_threshold = 3
  }

  lifecycle {
    create_before_destroy = true
  }
}

resource "aws_lb_listener" "https" {
  load_balancer_arn = aws_lb.api.arn
  port              = 443
  protocol          = "HTTPS"
  ssl_policy        = "ELBSecurityPolicy-TLS13-1-2-2021-06"
  certificate_arn   = var.certificate_arn

  default_action {
    type             = "forward"
    target_group_arn = aws_lb_target_group.api.arn
  }
}
