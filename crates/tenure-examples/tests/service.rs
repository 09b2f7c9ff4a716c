//! The service works with either cache.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn get(address: &str, path: &str) -> Vec<u8> {
    let mut stream = TcpStream::connect(address).unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&answer));
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
    answer.split_off(end + 4)
}

#[test]
fn a_picture_is_drawn_once_and_served_by_either_cache() {
    let served = [&["serve"][..], &["serve", "10000000"]].map(|arguments| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenure-examples"));
        let mut child = command.args(arguments).stdout(Stdio::piped()).spawn().unwrap();
        let output = child.stdout.take().unwrap();
        let _server = Server(child);
        let mut address = String::new();
        BufReader::new(output).read_line(&mut address).unwrap();
        let address = address.trim();
        let pictures = [1, 2, 1].map(|number| get(address, &format!("/picture/{number}")));
        assert_eq!(pictures[0], pictures[2]);
        assert_ne!(pictures[0], pictures[1]);
        let counters = String::from_utf8(get(address, "/counters")).unwrap();
        assert!(counters.starts_with("2 "), "drawn, and allocated: {counters}");
        if arguments == ["serve"] {
            let metrics = String::from_utf8(get(address, "/metrics")).unwrap();
            for sample in
                ["hits_total{cache=\"pictures\"} 1\n", "misses_total{cache=\"pictures\"} 2\n"]
            {
                assert!(metrics.contains(sample), "{metrics}");
            }
        }
        pictures
    });
    assert_eq!(served[0], served[1]);
}
