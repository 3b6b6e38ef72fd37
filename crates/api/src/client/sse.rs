//! An incremental parser for server-sent events, with a size limit.

/// Maximum size of one event in bytes. A task with the largest possible output fits.
pub(super) const MAX_EVENT_BYTES: usize = 4 * 1024 * 1024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Event {
    /// Empty if the event has no name.
    pub(super) name: String,
    /// The data lines, joined by line feeds.
    pub(super) data: String,
}

/// The error for an event that is larger than [`MAX_EVENT_BYTES`].
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Oversized;

/// Collects bytes into events.
#[derive(Debug, Default)]
pub(super) struct Parser {
    line: Vec<u8>,
    after_carriage_return: bool,
    name: String,
    data: Option<String>,
    /// Ids of the event that is being read, and of the last complete one.
    id: Option<String>,
    last_id: Option<String>,
}

impl Parser {
    /// The newest id, including that of an event without data. The next connection resumes from it.
    pub(super) fn last_id(&self) -> Option<&str> {
        self.last_id.as_deref()
    }

    /// Parses more bytes and returns the events that they complete.
    pub(super) fn push(&mut self, bytes: &[u8]) -> Result<Vec<Event>, Oversized> {
        let mut events = Vec::new();
        for &byte in bytes {
            let is_second_half = std::mem::take(&mut self.after_carriage_return) && byte == b'\n';
            if is_second_half {
                continue;
            }
            if byte == b'\n' || byte == b'\r' {
                self.after_carriage_return = byte == b'\r';
                events.extend(self.end_line());
            } else {
                self.line.push(byte);
            }
            if self.line.len() + self.data.as_ref().map_or(0, String::len) > MAX_EVENT_BYTES {
                return Err(Oversized);
            }
        }
        Ok(events)
    }

    fn end_line(&mut self) -> Option<Event> {
        let line = std::mem::take(&mut self.line);
        let line = String::from_utf8_lossy(&line);
        if line.is_empty() {
            let name = std::mem::take(&mut self.name);
            if let Some(id) = self.id.take() {
                self.last_id = Some(id);
            }
            return self.data.take().map(|data| Event { name, data });
        }
        let (field, value) = line.split_once(':').unwrap_or((&line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.name = value.to_owned(),
            "data" => match &mut self.data {
                Some(data) => {
                    data.push('\n');
                    data.push_str(value);
                }
                None => self.data = Some(value.to_owned()),
            },
            "id" => self.id = Some(value.to_owned()),
            // Comments, which have an empty field name, and retry times are not needed.
            _ => {}
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, data: &str) -> Event {
        Event { name: name.to_owned(), data: data.to_owned() }
    }

    #[test]
    fn events_are_found_however_the_bytes_are_cut() {
        let text = "event: task\r\ndata: {\"a\":\r\ndata: 1}\r\n\r\n: keep-alive\n\ndata:x\n\nevent: empty\n\nid: 4\ndata: y\r\r";
        let expected = [event("task", "{\"a\":\n1}"), event("", "x"), event("", "y")];
        for cut in 0..text.len() {
            let mut parser = Parser::default();
            let mut events = parser.push(&text.as_bytes()[..cut]).expect("fits");
            events.extend(parser.push(&text.as_bytes()[cut..]).expect("fits"));
            assert_eq!(events, expected, "cut at {cut}");
        }
    }

    #[test]
    fn an_id_counts_once_its_event_is_complete() {
        let mut parser = Parser::default();
        let mut read = |text: &str| {
            let events = parser.push(text.as_bytes()).expect("fits").len();
            (events, parser.last_id().map(str::to_owned))
        };
        assert_eq!(read("id: 6\n\n"), (0, Some("6".to_owned())), "an event without data only says where the stream starts");
        assert_eq!(read("id: 7\ndata: x\n"), (0, Some("6".to_owned())));
        assert_eq!(read("\n"), (1, Some("7".to_owned())));
        assert_eq!(read("data: y\n\n"), (1, Some("7".to_owned())));
    }

    #[test]
    fn an_event_that_does_not_end_is_refused() {
        let mut parser = Parser::default();
        let line = format!("data: {}\n", "x".repeat(1024));
        let refused = (0..8 * 1024).any(|_| parser.push(line.as_bytes()) == Err(Oversized));
        assert!(refused);
    }
}
