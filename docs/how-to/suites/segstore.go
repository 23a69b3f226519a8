// Package segstore starts a segstore server for tests: a process that is steered over its HTTP API. Go 1.19 or newer,
// standard library only.
//
//	server := segstore.Start(t)
//	server.Put("/v1/streams/shop/orders", `{"segments": 2}`)
//	…                                      // your code connects to server.Controller()
package segstore

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// Server is a running server. Its methods end the test with the server's sentence if the server refuses.
type Server struct {
	t         testing.TB
	addresses struct{ Controller, HTTP string }
}

// Start starts the server for a test and returns once it listens; it ends with the test. The executable is segstore, or
// what the environment variable SEGSTORE names. options: more of `segstore serve`.
func Start(t testing.TB, options ...string) *Server {
	t.Helper()
	command := os.Getenv("SEGSTORE")
	if command == "" {
		command = "segstore"
	}
	serve := []string{"serve", "--port", "0", "--controller-port", "0", "--http-port", "0", "--announce", "json"}
	process := exec.Command(command, append(serve, options...)...)
	process.Stderr = os.Stderr
	output, err := process.StdoutPipe()
	if err == nil {
		err = process.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = process.Process.Signal(syscall.SIGTERM) // it may have ended by itself
		_ = process.Wait()
	})
	line, err := bufio.NewReader(output).ReadString('\n')
	if err != nil {
		t.Fatalf("%s serve ended before it listened: %v", command, err)
	}
	server := &Server{t: t}
	if err := json.Unmarshal([]byte(line), &server.addresses); err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	return server
}

// Controller is the controller's URI, for a client.
func (s *Server) Controller() string { return "tcp://" + s.addresses.Controller }

// WaitFor waits until as many requests match a filter and were applied.
func (s *Server) WaitFor(match string, count int) {
	s.t.Helper()
	s.Get(fmt.Sprintf("/v1/requests/wait?timeout_s=10&count=%d&match=%s", count, url.QueryEscape(match)), nil)
}

// Verify verifies the number of requests that match a filter.
func (s *Server) Verify(match string, exactly int) {
	s.t.Helper()
	s.Get(fmt.Sprintf("/v1/requests/verify?exactly=%d&match=%s", exactly, url.QueryEscape(match)), nil)
}

// Get decodes the answer into a value, unless that is nil.
func (s *Server) Get(path string, into any) {
	s.t.Helper()
	answer := s.request(http.MethodGet, path, "")
	if into != nil {
		if err := json.Unmarshal(answer, into); err != nil {
			s.t.Fatalf("GET %s: %v in %s", path, err, answer)
		}
	}
}

// Put sends JSON, or no body if it is empty.
func (s *Server) Put(path, body string) {
	s.t.Helper()
	s.request(http.MethodPut, path, body)
}

// Post sends JSON, or no body if it is empty.
func (s *Server) Post(path, body string) {
	s.t.Helper()
	s.request(http.MethodPost, path, body)
}

// Delete deletes what the path names.
func (s *Server) Delete(path string) {
	s.t.Helper()
	s.request(http.MethodDelete, path, "")
}

func (s *Server) request(method, path, body string) []byte {
	s.t.Helper()
	request, err := http.NewRequest(method, "http://"+s.addresses.HTTP+path, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode >= 400 {
		s.t.Fatalf("%s %s: %s %v", method, path, answer, err)
	}
	return answer
}
