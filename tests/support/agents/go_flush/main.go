package main

import (
	"os"
	"time"

	"github.com/grafana/pyroscope-go"
)

const uploadRate = 2 * time.Second

var kept [][]byte

// The agent rounds the end of a flush down to the upload rate. It begins a little after such a
// moment, uploads once at its own pace, and flushes before the next: that flush ends before it
// begins.
func main() {
	time.Sleep(time.Until(time.Now().Truncate(uploadRate).Add(uploadRate + 200*time.Millisecond)))
	profiler, err := pyroscope.Start(pyroscope.Config{
		ApplicationName: "flushed.go",
		ServerAddress:   os.Args[1],
		TenantID:        "acme",
		UploadRate:      uploadRate,
		Tags:            map[string]string{"region": "eu-1"},
		Logger:          pyroscope.StandardLogger,
		ProfileTypes: []pyroscope.ProfileType{
			pyroscope.ProfileCPU,
			pyroscope.ProfileAllocObjects,
			pyroscope.ProfileAllocSpace,
			pyroscope.ProfileInuseObjects,
			pyroscope.ProfileInuseSpace,
			pyroscope.ProfileGoroutines,
		},
	})
	if err != nil {
		panic(err)
	}
	until := time.Now().Add(uploadRate + 500*time.Millisecond)
	for time.Now().Before(until) {
		kept = append(kept[:0], make([]byte, 1<<20))
	}
	profiler.Flush(true)
	os.Exit(0) // without Stop: what was not flushed is lost
}
