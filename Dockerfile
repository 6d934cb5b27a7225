# One image for every service of docker-compose.yml; the service chooses the command.
FROM python:3.11-slim-bookworm
ARG TORCH_INDEX=""
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 PIP_NO_CACHE_DIR=1 TRAINYARD_HOME=/data
WORKDIR /app
COPY requirements.txt constraints.txt ./
# torch first: the largest layer, and the one that changes least. TORCH_INDEX chooses a CPU-only build.
RUN pip install -c constraints.txt "$(grep '^torch==' constraints.txt)" numpy ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} \
    && pip install -c constraints.txt -r requirements.txt
COPY . .
RUN useradd --system --uid 10001 --home-dir /data trainyard && mkdir -p /data && chown trainyard /data
USER trainyard
VOLUME /data
EXPOSE 8000
CMD ["gunicorn", "-c", "python:dashboard.gunicorn", "dashboard.asgi:application", "--bind", "0.0.0.0:8000", "--workers", "2"]
