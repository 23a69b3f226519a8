//! A segstore server for tests: a process that is steered over its HTTP API. Rust 1.70 or newer; no crates.
//!
//!     let segstore = Segstore::start(&[]);
//!     segstore.put("/v1/streams/shop/orders", r#"{"segments": 2}"#);
//!     …                                       // your code connects to segstore.controller()
//!
//! The server ends when the value is dropped. Bodies are JSON, as text.
#![allow(dead_code)]

use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

pub struct Segstore {
    process: Child,
    announced: String,
}

impl Segstore {
    /// Starts the server, and returns once it listens. The executable is `segstore`, or what the environment variable
    /// SEGSTORE names. options: more of `segstore serve`.
    pub fn start(options: &[&str]) -> Segstore {
        let command = env::var("SEGSTORE").unwrap_or_else(|_| "segstore".to_string());
        let mut process = Command::new(&command)
            .args([
                "serve",
                "--port",
                "0",
                "--controller-port",
                "0",
                "--http-port",
                "0",
                "--announce",
                "json",
            ])
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command}: {error}"));
        let mut announced = String::new();
        let output = process.stdout.take().expect("it is piped");
        BufReader::new(output)
            .read_line(&mut announced)
            .expect("one line of UTF-8");
        assert!(
            !announced.is_empty(),
            "{command} serve ended before it listened"
        );
        Segstore { process, announced }
    }

    /// The controller's URI, for a client.
    pub fn controller(&self) -> String {
        format!("tcp://{}", self.address("controller"))
    }

    /// Waits until as many requests match a filter and were applied.
    pub fn wait_for(&self, filter: &str, count: usize) {
        self.get(&format!(
            "/v1/requests/wait?timeout_s=10&count={count}&match={}",
            encoded(filter)
        ));
    }

    /// Verifies the number of requests that match a filter.
    pub fn verify(&self, filter: &str, exactly: usize) {
        self.get(&format!(
            "/v1/requests/verify?exactly={exactly}&match={}",
            encoded(filter)
        ));
    }

    pub fn get(&self, path: &str) -> String {
        self.request("GET", path, "")
    }

    pub fn put(&self, path: &str, json: &str) -> String {
        self.request("PUT", path, json)
    }

    pub fn post(&self, path: &str, json: &str) -> String {
        self.request("POST", path, json)
    }

    pub fn delete(&self, path: &str) -> String {
        self.request("DELETE", path, "")
    }

    /// The answer's body. Panics with the server's sentence if it refuses.
    pub fn request(&self, method: &str, path: &str, json: &str) -> String {
        let address = self.address("http");
        let mut stream = TcpStream::connect(address).expect("the server listens");
        let head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        let body = format!(
            "content-type: application/json\r\ncontent-length: {}\r\n\r\n{json}",
            json.len()
        );
        stream
            .write_all(format!("{head}{body}").as_bytes())
            .expect("the server reads");
        let mut answer = String::new();
        stream
            .read_to_string(&mut answer)
            .expect("the server answers in UTF-8");
        let (head, body) = answer
            .split_once("\r\n\r\n")
            .expect("a head ends with an empty line");
        let status = head.split(' ').nth(1).unwrap_or("");
        assert!(status.starts_with('2'), "{method} {path}: {body}");
        body.to_string()
    }

    fn address(&self, part: &str) -> &str {
        let from = format!("\"{part}\": \"");
        let (_, rest) = self
            .announced
            .split_once(from.as_str())
            .expect("the server has this part");
        rest.split('"').next().expect("split gives one part")
    }
}

impl Drop for Segstore {
    fn drop(&mut self) {
        let _ = self.process.kill(); // it may have ended by itself
        let _ = self.process.wait();
    }
}

/// A text as part of a query.
fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| {
            if byte.is_ascii_alphanumeric() {
                (byte as char).to_string()
            } else {
                format!("%{byte:02X}")
            }
        })
        .collect()
}
