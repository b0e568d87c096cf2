# An image that serves /data on port 4000:
#   docker build -t topics .
#   docker run -p 4000:4000 -v topics-data:/data -e TOPICS_API_KEYS=… topics
FROM rust:1-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends python3 python3-venv && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /venv && /venv/bin/pip install --no-cache-dir 'maturin>=1.9,<2'
WORKDIR /src
COPY . .
RUN /venv/bin/maturin build --release --locked --strip --out /dist

FROM python:3.13-slim-bookworm
COPY --from=build /dist /dist
RUN pip install --no-cache-dir "$(echo /dist/*.whl)[server]" && rm -r /dist \
    && useradd --system --home /data topics && install -d -o topics /data
USER topics
VOLUME /data
EXPOSE 4000
# SIGTERM ends it orderly: what was acked is synced first.
STOPSIGNAL SIGTERM
ENTRYPOINT ["topics"]
CMD ["serve", "--data-dir", "/data", "--host", "0.0.0.0"]
