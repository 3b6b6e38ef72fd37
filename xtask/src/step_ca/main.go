// A step-ca for the tests: the certificate authority of smallstep, as Debian packages its source, around one configuration file.
//
// Debian has no package with the program itself. `cargo xtask test` builds this file against
// `golang-github-smallstep-certificates-dev` and keeps the program under `target/tools/step-ca`.
package main

import (
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/smallstep/certificates/authority/config"
	"github.com/smallstep/certificates/ca"
)

func run() error {
	if len(os.Args) != 2 {
		return fmt.Errorf("usage: step-ca ca.json")
	}
	configuration, err := config.LoadConfiguration(os.Args[1])
	if err != nil {
		return err
	}
	authority, err := ca.New(configuration, ca.WithConfigFile(os.Args[1]), ca.WithQuiet(true))
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		<-stop
		_ = authority.Stop()
		os.Exit(0)
	}()
	return authority.Run()
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
