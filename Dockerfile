# The API and the worker are one image: `docker run byre api`, `docker run byre worker`.

FROM python:3.11-slim AS build
WORKDIR /srv/byre
RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:$PATH
COPY requirements.txt ./
RUN pip install --no-cache-dir --require-hashes -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY app ./app
COPY workers ./workers
COPY schemas ./schemas
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . && python -m compileall -q app workers

FROM python:3.11-slim
# git and ssh for the repositories, bubblewrap for BYRE_SANDBOX=bwrap, tini to reap what agents leave behind as process 1.
RUN apt-get update \
    && apt-get install -y --no-install-recommends git openssh-client ca-certificates bubblewrap tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 byre \
    && install -d -o byre -g byre /var/lib/byre
# Agent programs for workers, from npm: --build-arg NPM_AGENTS='@anthropic-ai/claude-code@VERSION'. None: the harness `script` only.
ARG NPM_AGENTS=""
RUN if [ -n "$NPM_AGENTS" ]; then \
        apt-get update \
        && apt-get install -y --no-install-recommends nodejs npm \
        && npm install --global --no-audit --no-fund $NPM_AGENTS \
        && rm -rf /var/lib/apt/lists/* /root/.npm; \
    fi
COPY --from=build /opt/venv /opt/venv
COPY --from=build /srv/byre /srv/byre
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    BYRE_DATA=/var/lib/byre \
    BYRE_HOST=0.0.0.0
WORKDIR /var/lib/byre
USER byre
EXPOSE 8080
# SIGTERM drains: streams end within 3 s, turns within BYRE_DRAIN_SECONDS. Give workers a stop timeout above that.
STOPSIGNAL SIGTERM
ENTRYPOINT ["tini", "--", "byre"]
CMD ["api"]
