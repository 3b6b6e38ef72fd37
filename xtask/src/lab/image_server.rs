//! A small web server for one image. It is slow enough for a download to be interrupted, and supports resuming one.

use std::io::{BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Bytes per write, and the pause between two writes: 40 MiB per second.
const PIECE: usize = 1024 * 1024;
const PAUSE: Duration = Duration::from_millis(25);

/// Serves the image at every path until this process ends. Returns the base URL.
pub(super) fn start(image: &Path) -> Result<String, String> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).map_err(|error| format!("the image server: {error}"))?;
    let address = listener.local_addr().map_err(|error| format!("the image server: {error}"))?;
    let image = image.to_owned();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let image = image.clone();
            std::thread::spawn(move || {
                // A client that disconnects during the download is expected.
                let _ = answer(stream, &image);
            });
        }
    });
    Ok(format!("http://{address}/"))
}

fn answer(mut stream: TcpStream, image: &PathBuf) -> std::io::Result<()> {
    let mut from = 0;
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut line = String::new();
        (&mut reader).take(8192).read_line(&mut line)?;
        let line = line.trim_end().to_ascii_lowercase();
        if line.is_empty() {
            break;
        }
        if let Some(range) = line.strip_prefix("range: bytes=") {
            from = range.trim_end_matches('-').parse().unwrap_or(0);
        }
    }
    let mut file = std::fs::File::open(image)?;
    let all = file.metadata()?.len();
    file.seek(SeekFrom::Start(from))?;
    let left = all.saturating_sub(from);
    let status = if from == 0 {
        "200 OK".to_owned()
    } else {
        format!("206 Partial Content\r\nContent-Range: bytes {from}-{}/{all}", all.saturating_sub(1))
    };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Length: {left}\r\nETag: \"lab\"\r\nAccept-Ranges: bytes\r\nConnection: close\r\n\r\n"
    )?;
    let mut piece = vec![0; PIECE];
    loop {
        let count = file.read(&mut piece)?;
        if count == 0 {
            return Ok(());
        }
        stream.write_all(&piece[..count])?;
        std::thread::sleep(PAUSE);
    }
}
