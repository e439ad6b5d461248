// Unary WriteBinlog calls as TiDB's pump client makes them: stock grpc-go, a deadline of 15 s in each call.
//
//	load ADDR CLUSTER_ID [-c 64] [-conns 1] [-size 256] [-seconds 5]
//
// Each of c workers sends a prewrite and its commit in turn. Timestamps are those of the clock less 2 ms: a Pump refuses
// those that the cluster has not given out yet. The last line that it prints is JSON.
package main

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"sort"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
)

const (
	method   = "/binlog.Pump/WriteBinlog"
	deadline = 15 * time.Second
	window   = 1<<30 - 1 // as TiDB sets it
)

// bytesCodec takes messages that are serialized already.
type bytesCodec struct{}

func (bytesCodec) Marshal(v any) ([]byte, error) { return *(v.(*[]byte)), nil }
func (bytesCodec) Unmarshal(data []byte, v any) error {
	*(v.(*[]byte)) = append([]byte(nil), data...)
	return nil
}
func (bytesCodec) Name() string { return "proto" }

var lastTS atomic.Int64

func nextTS() int64 {
	for {
		now, last := (time.Now().UnixMilli()-2)<<18, lastTS.Load()
		if now <= last {
			now = last + 1
		}
		if lastTS.CompareAndSwap(last, now) {
			return now
		}
	}
}

func number(b []byte, field int, value int64) []byte {
	return binary.AppendUvarint(append(b, byte(field<<3)), uint64(value))
}

func block(b []byte, field int, value []byte) []byte {
	b = binary.AppendUvarint(append(b, byte(field<<3|2)), uint64(len(value)))
	return append(b, value...)
}

// prewriteValue is a binlog.PrewriteValue of about so many bytes: one inserted row of random ones.
func prewriteValue(size int) []byte {
	row := make([]byte, max(size-16, 1))
	if _, err := rand.Read(row); err != nil {
		panic(err)
	}
	mutation := number(nil, 1, 1)
	mutation = block(mutation, 2, row)
	mutation = number(mutation, 7, 0)
	return block(number(nil, 1, 1), 2, mutation)
}

// binlog is a binlog.Binlog as TiDB's serializer has it: numbers are written even where they are 0.
func binlog(kind, startTS, commitTS int64, value []byte) []byte {
	b := number(number(number(nil, 1, kind), 2, startTS), 3, commitTS)
	if value != nil {
		b = block(block(b, 4, []byte("k")), 5, value)
	}
	return number(number(b, 7, 0), 8, 0)
}

type worker struct {
	conn        *grpc.ClientConn
	clusterID   int64
	value       []byte
	latenciesMS []float64
	failed      int
	firstError  string
}

func (w *worker) send(binlog []byte) {
	request := block(number(nil, 1, w.clusterID), 2, binlog)
	var response []byte
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	began := time.Now()
	err := w.conn.Invoke(ctx, method, &request, &response)
	if err == nil && len(response) == 0 {
		w.latenciesMS = append(w.latenciesMS, float64(time.Since(began).Microseconds())/1000)
		return
	}
	w.failed++
	if w.firstError == "" {
		w.firstError = fmt.Sprint(err, string(response))
	}
}

func (w *worker) run(end time.Time) {
	for time.Now().Before(end) {
		start := nextTS()
		w.send(binlog(0, start, 0, w.value))
		w.send(binlog(1, start, nextTS(), nil))
	}
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "load ADDR CLUSTER_ID [flags]")
		os.Exit(2)
	}
	addr := os.Args[1]
	clusterID, err := strconv.ParseUint(os.Args[2], 10, 64)
	if err != nil {
		panic(err)
	}
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	workers := flags.Int("c", 64, "calls at once")
	conns := flags.Int("conns", 1, "connections")
	size := flags.Int("size", 256, "bytes of a prewrite value")
	seconds := flags.Float64("seconds", 5, "how long")
	_ = flags.Parse(os.Args[3:])

	encoding.RegisterCodec(bytesCodec{})
	var open []*grpc.ClientConn
	for range *conns {
		conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
		if err != nil {
			panic(err)
		}
		open = append(open, conn)
	}
	value := prewriteValue(*size)
	began := time.Now()
	end := began.Add(time.Duration(*seconds * float64(time.Second)))
	all := make([]worker, *workers)
	var running sync.WaitGroup
	for n := range all {
		all[n] = worker{conn: open[n%len(open)], clusterID: int64(clusterID), value: value}
		running.Add(1)
		go func() {
			defer running.Done()
			all[n].run(end)
		}()
	}
	running.Wait()
	report(all, time.Since(began).Seconds())
}

func report(all []worker, seconds float64) {
	var latencies []float64
	failed, firstError := 0, ""
	for _, w := range all {
		latencies = append(latencies, w.latenciesMS...)
		failed += w.failed
		if firstError == "" {
			firstError = w.firstError
		}
	}
	sort.Float64s(latencies)
	quantile := func(q float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return latencies[int(q*float64(len(latencies)-1))]
	}
	var used syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &used)
	cpu := time.Duration(used.Utime.Nano() + used.Stime.Nano()).Seconds()
	_ = json.NewEncoder(os.Stdout).Encode(map[string]any{
		"ok": len(latencies), "failed": failed, "error": firstError, "seconds": seconds,
		"p50_ms": quantile(0.5), "p99_ms": quantile(0.99), "client_cpu_s_per_100k": cpu / float64(max(len(latencies), 1)) * 1e5,
	})
}
