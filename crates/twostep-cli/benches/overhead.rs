//! What a run costs on our side: `cargo bench -p twostep-cli --bench overhead`.
//!
//! A command that copies its inputs, against starting the same command by itself; and a model on loopback that answers at once,
//! against asking it by itself. Both with the ledger on the disk of the temporary folder, whose synchronisation is most of it.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const RUNS: usize = 400;

fn study(simulator: &str, output: &str, runs: usize) -> String {
    format!(
        "[simulator]\n{simulator}\n[outputs.y]\n{output}\n[unknowns.x]\nrange = [0, 1]\n[design]\nruns = {runs}\n\
         [surrogate]\nkind = \"pce\"\ndegree = 0\n[measurements]\nnoise = {{ sd = 0.1 }}\n"
    )
}

/// Seconds of `twostep simulate` in a fresh folder.
fn simulate(folder: &Path, text: &str) -> f64 {
    let _ = std::fs::remove_dir_all(folder.join("study.twostep"));
    std::fs::write(folder.join("study.toml"), text).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_twostep"));
    command.args(["simulate", "study.toml", "--quiet"]).current_dir(folder).stdout(Stdio::null());
    let start = Instant::now();
    assert!(command.status().unwrap().success());
    start.elapsed().as_secs_f64()
}

/// Milliseconds of one run more.
fn per_run(folder: &Path, simulator: &str, output: &str) -> f64 {
    let [few, many] = [1, RUNS + 1].map(|runs| simulate(folder, &study(simulator, output, runs)));
    1e3 * (many - few) / RUNS as f64
}

/// Milliseconds of `work`, mean of many.
fn each(mut work: impl FnMut()) -> f64 {
    let start = Instant::now();
    (0..RUNS).for_each(|_| work());
    1e3 * start.elapsed().as_secs_f64() / RUNS as f64
}

/// Answers every question of a client at once, one connection after the other.
fn answer(stream: &mut TcpStream) {
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|n| n == 1) {
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).to_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    let _ = stream.read_exact(&mut body);
    let body = match head.split_whitespace().nth(1).unwrap_or("") {
        "/info" => r#"{"protocolVersion":1.0,"models":["m"]}"#,
        "/modelinfo" => r#"{"support":{"Evaluate":true}}"#,
        "/inputsizes" => r#"{"inputSizes":[1]}"#,
        "/outputsizes" => r#"{"outputSizes":[1]}"#,
        _ => r#"{"output":[[0.5]]}"#,
    };
    let length = body.len();
    let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}");
}

fn main() {
    let folder: PathBuf = std::env::temp_dir().join(format!("twostep-overhead-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();

    let total = per_run(
        &folder,
        "command = [\"/bin/cp\", \"{params}\", \"{results}\"]",
        "results = { json = \"results.out\", path = \"x\" }",
    );
    let (from, to) = (folder.join("study.toml"), folder.join("copy"));
    let bare = each(|| assert!(Command::new("/bin/cp").arg(&from).arg(&to).status().unwrap().success()));
    println!("command   {total:.2} ms a run, {bare:.2} ms to start it alone: {:.2} ms on our side", total - bare);

    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || listener.incoming().flatten().for_each(|mut stream| answer(&mut stream)));
    let total = per_run(&folder, &format!("umbridge = \"http://{address}\""), "unit = \"m\"");
    let bare = each(|| {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(b"POST /Evaluate HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
    });
    let mut file = std::fs::File::create(folder.join("synchronised")).unwrap();
    let disk = each(|| {
        file.write_all(&[0; 512]).unwrap();
        file.sync_data().unwrap();
    });
    println!(
        "umbridge  {total:.2} ms a run, {bare:.2} ms to ask it alone, {disk:.2} ms for the disk: {:.2} ms on our side",
        total - bare - disk
    );
    std::fs::remove_dir_all(folder).unwrap();
}
