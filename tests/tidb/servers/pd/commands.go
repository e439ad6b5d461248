//go:build commands

// Package pd names PD's server, in a module of its own: its etcd and its gRPC are not those of TiDB.
package pd

import _ "github.com/tikv/pd/cmd/pd-server"
