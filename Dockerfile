# An image that serves /data on port 4000:
#   docker build -t topics .
#   docker run -p 4000:4000 -v topics-data:/data -e TOPICS_API_KEYS=… --stop-timeout 60 topics
# Docker kills a container 10 s after SIGTERM unless --stop-timeout gives it longer. The server may use
# TOPICS_SHUTDOWN_TIMEOUT_MS (10 s) for open requests, and syncs and closes after that.
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir 'maturin>=1.9,<2'
WORKDIR /src
COPY . .
RUN /venv/bin/maturin build --release --locked --strip --out /dist

FROM python:3.13-slim-bookworm
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[server]" && rm -r /dist \
    && groupadd --gid 10001 topics && useradd --uid 10001 --gid 10001 --home-dir /data topics \
    && install -d -o topics -g topics /data
# By number: Kubernetes' runAsNonRoot cannot check a name.
USER 10001:10001
VOLUME /data
EXPOSE 4000
# Not ready while the log is replayed, which takes its time after a kill.
HEALTHCHECK --interval=5s --start-period=15m CMD ["python", "-c", "import urllib.request as u; u.urlopen('http://127.0.0.1:4000/readyz')"]
# SIGTERM ends it orderly: what was acked is synced first.
STOPSIGNAL SIGTERM
ENTRYPOINT ["topics"]
CMD ["serve", "--data-dir", "/data", "--host", "0.0.0.0"]
