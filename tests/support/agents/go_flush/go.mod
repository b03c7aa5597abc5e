module flush

go 1.25.0

require github.com/grafana/pyroscope-go v1.4.3
