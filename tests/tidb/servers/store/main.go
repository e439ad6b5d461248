// Command store serves the storage engine that is embedded in TiDB for its own tests (unistore) over gRPC, and registers
// with PD as a TiKV: so `tidb-server -store tikv` runs, and writes binlogs, without a TiKV being built.
package main

import (
	"context"
	"flag"
	"fmt"
	"math"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/pingcap/kvproto/pkg/metapb"
	"github.com/pingcap/kvproto/pkg/pdpb"
	"github.com/pingcap/kvproto/pkg/tikvpb"
	"github.com/pingcap/tidb/store/mockstore/unistore/config"
	"github.com/pingcap/tidb/store/mockstore/unistore/pd"
	"github.com/pingcap/tidb/store/mockstore/unistore/server"
	"google.golang.org/grpc"
)

// PD takes no store without a version, and unistore names none.
const version = "6.6.0"

// registrar is a client of PD that says of the store what unistore leaves out.
type registrar struct{ pd.Client }

func (r registrar) Bootstrap(ctx context.Context, store *metapb.Store, region *metapb.Region) (*pdpb.BootstrapResponse, error) {
	store.Version = version
	return r.Client.Bootstrap(ctx, store, region)
}

func (r registrar) PutStore(ctx context.Context, store *metapb.Store) error {
	store.Version = version
	return r.Client.PutStore(ctx, store)
}

func main() {
	addr := flag.String("addr", "127.0.0.1:20160", "host:port to listen on, and to register")
	members := flag.String("pd", "127.0.0.1:2379", "PD's client addresses, with commas")
	path := flag.String("path", "", "directory of the data")
	sync := flag.Bool("sync", false, "fsync each commit")
	flag.Parse()
	if err := run(*addr, strings.Split(*members, ","), *path, *sync); err != nil {
		fmt.Fprintln(os.Stderr, "store:", err)
		os.Exit(1)
	}
}

func run(addr string, members []string, path string, sync bool) error {
	if path == "" {
		return fmt.Errorf("-path names no directory")
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return err
	}
	// PD is told of the store below: by then somebody listens, so that no caller is refused.
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	client, err := pd.NewClient(members, "store")
	if err != nil {
		return err
	}
	conf := config.DefaultConf
	conf.Server.StoreAddr = addr
	conf.Server.PDAddr = strings.Join(members, ",")
	conf.Server.Raft = false
	conf.Engine.DBPath = path
	conf.Engine.SyncWrite = sync
	store, err := server.New(&conf, registrar{client})
	if err != nil {
		return err
	}
	served := grpc.NewServer(
		grpc.MaxRecvMsgSize(math.MaxInt32),
		grpc.MaxSendMsgSize(math.MaxInt32),
	)
	tikvpb.RegisterTikvServer(served, store)

	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)
	go func() {
		<-stop
		served.Stop()
	}()
	fmt.Println("serving", addr)
	if err := served.Serve(listener); err != nil {
		return err
	}
	store.Stop()
	return nil
}
