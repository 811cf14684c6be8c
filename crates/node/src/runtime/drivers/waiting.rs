//! Requests that a driver works on, and the places that their answers go to.

use crate::runtime::nbd_conn::Conn;
use freebs_driver::Reply;
use freebs_nbd::Ticket;
use freebs_types::Result;
use std::cell::RefCell;
use std::rc::Rc;
use tokio::sync::oneshot;

/// A request on its way through a driver, and the place that its answer goes to.
pub enum Asked {
    /// Of an NBD client.
    Client { conn: Rc<Conn>, ticket: Ticket },
    /// Of this process itself.
    Here(oneshot::Sender<Result<Reply>>),
}

/// The requests of one driver, by the tokens that it knows them by.
#[derive(Default)]
pub struct Waiting {
    asked: RefCell<Vec<Option<Asked>>>,
    free: RefCell<Vec<usize>>,
}

impl Waiting {
    /// A token for a request.
    pub fn put(&self, asked: Asked) -> u64 {
        let mut all = self.asked.borrow_mut();
        let token = match self.free.borrow_mut().pop() {
            Some(i) => {
                all[i] = Some(asked);
                i
            }
            None => {
                all.push(Some(asked));
                all.len() - 1
            }
        };
        token as u64
    }

    /// The request has its outcome.
    pub fn done(&self, token: u64, result: Result<Reply>) {
        let index = token as usize;
        let Some(asked) = self.asked.borrow_mut().get_mut(index).and_then(Option::take) else { return };
        self.free.borrow_mut().push(index);
        match asked {
            Asked::Client { conn, ticket } => conn.answer(ticket, result),
            Asked::Here(reply) => drop(reply.send(result)),
        }
    }
}
