//! Collects lists page by page.

use gpuaas_api::ClientError;
use gpuaas_api::dto::{MAX_PAGE, Page};

/// Number of items at which every list command stops collecting.
pub(crate) const MAX_ITEMS: usize = 100_000;

/// The first items of a list.
pub(crate) struct Collected<T> {
    pub(crate) items: Vec<T>,
    /// Whether there are more items.
    pub(crate) more: bool,
}

/// Fetches pages until there are `limit` items or no more pages. `fetch` gets the cursor and the page size.
pub(crate) async fn collect<T>(
    limit: usize,
    mut fetch: impl AsyncFnMut(Option<String>, u32) -> Result<Page<T>, ClientError>,
) -> Result<Collected<T>, ClientError> {
    let limit = limit.min(MAX_ITEMS);
    let mut items = Vec::new();
    let mut after = None;
    loop {
        let wanted = u32::try_from(limit - items.len()).unwrap_or(MAX_PAGE).min(MAX_PAGE);
        let page = fetch(after.clone(), wanted).await?;
        items.extend(page.items);
        // A cursor that does not advance would loop forever.
        let next = page.next.filter(|next| Some(next) != after.as_ref());
        let more = next.is_some() || items.len() > limit;
        items.truncate(limit);
        if !more || items.len() >= limit {
            return Ok(Collected { items, more });
        }
        after = next;
    }
}

/// Like [`collect`], for lists with the newest items first. Stops at the first item that is too old.
pub(crate) async fn collect_newest<T>(
    limit: usize,
    is_wanted: impl Fn(&T) -> bool,
    mut fetch: impl AsyncFnMut(Option<String>, u32) -> Result<Page<T>, ClientError>,
) -> Result<Collected<T>, ClientError> {
    collect(limit, async |after, wanted| {
        let mut page = fetch(after, wanted).await?;
        if let Some(end) = page.items.iter().position(|item| !is_wanted(item)) {
            page.items.truncate(end);
            page.next = None;
        }
        Ok(page)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects from a server that has the numbers below `total`, in pages of at most 3.
    async fn collect_of(total: u32, limit: usize) -> (Vec<u32>, bool) {
        let collected = collect(limit, async |after: Option<String>, wanted| {
            let start: u32 = after.map_or(0, |cursor| cursor.parse().expect("our cursor"));
            let end = total.min(start + wanted.min(3));
            Ok(Page { items: (start..end).collect(), next: (end < total).then(|| end.to_string()) })
        })
        .await
        .expect("no error");
        (collected.items, collected.more)
    }

    #[tokio::test]
    async fn pages_are_put_together_up_to_the_limit() {
        assert_eq!(collect_of(0, 10).await, (vec![], false));
        assert_eq!(collect_of(7, 10).await, ((0..7).collect(), false));
        assert_eq!(collect_of(7, 7).await, ((0..7).collect(), false));
        assert_eq!(collect_of(7, 4).await, ((0..4).collect(), true));
    }

    #[tokio::test]
    async fn a_list_with_the_newest_first_is_read_up_to_what_is_too_old() {
        let pages = std::cell::Cell::new(0);
        let collected = collect_newest(
            100,
            |number: &u32| *number >= 5,
            async |after: Option<String>, _| {
                pages.set(pages.get() + 1);
                let start: u32 = after.map_or(9, |after| after.parse().expect("our cursor"));
                Ok(Page { items: vec![start, start - 1], next: Some((start - 2).to_string()) })
            },
        )
        .await
        .expect("no error");
        assert_eq!((collected.items, collected.more, pages.get()), (vec![9, 8, 7, 6, 5], false, 3));
    }

    #[tokio::test]
    async fn a_server_that_repeats_its_cursor_ends_the_list() {
        let collected = collect(10, async |_, _| Ok(Page { items: vec![1], next: Some("same".to_owned()) })).await.expect("ok");
        assert_eq!(collected.items, [1, 1]);
    }
}
