//! Groups of threads: the least that collectives can be. A message is addressed by group, call, sender and receiver, and
//! says what it is for.

use std::{
    cell::Cell,
    collections::HashMap,
    rc::Rc,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use tch::Tensor;

use crate::{
    Error, ErrorKind, Result,
    fsdp::Groups,
    mesh::{Axis, Coordinates, DataSplit, MeshShape},
    transport::{Group, Purpose},
};

type Address = (String, u64, usize, usize);

#[derive(Debug)]
enum Content {
    Tensor(Tensor),
    Bytes(Vec<u8>),
}

#[derive(Debug, Default)]
pub(super) struct Board {
    messages: Mutex<HashMap<Address, (Purpose, Content)>>,
    arrived: Condvar,
}

#[derive(Debug)]
struct Threads {
    board: Arc<Board>,
    name: String,
    index: usize,
    size: usize,
    calls: Cell<u64>,
}

pub(super) fn groups(board: &Arc<Board>, mesh: MeshShape, data: DataSplit, at: Coordinates) -> Groups {
    let rank = mesh.rank(at);
    let group = |name: &str, members: Vec<usize>| -> Rc<dyn Group> {
        let index = members.iter().position(|member| *member == rank).unwrap();
        let name = format!("{name} {members:?}");
        Rc::new(Threads { board: Arc::clone(board), name, index, size: members.len(), calls: Cell::new(0) })
    };
    Groups {
        world: group("world", (0..mesh.ranks()).collect()),
        shard: group("shard", data.shard_group(mesh, at)),
        replicate: group("replicate", data.replica_group(mesh, at)),
        pp: group("pp", mesh.group(at, Axis::Pp)),
    }
}

impl Threads {
    fn swap(&self, purpose: &Purpose, parts: Vec<Content>) -> Result<Vec<Content>> {
        let call = self.calls.replace(self.calls.get() + 1);
        let mut messages = self.board.messages.lock().unwrap();
        for (to, part) in parts.into_iter().enumerate() {
            messages.insert((self.name.clone(), call, self.index, to), (purpose.clone(), part));
        }
        self.board.arrived.notify_all();
        let mut all = Vec::new();
        for from in 0..self.size {
            let address = (self.name.clone(), call, from, self.index);
            let limit = Duration::from_secs(60);
            let missing = |messages: &mut HashMap<Address, _>| !messages.contains_key(&address);
            let (found, _) = self.board.arrived.wait_timeout_while(messages, limit, missing).unwrap();
            messages = found;
            let late = || Error::new(ErrorKind::Peer, format!("{purpose}: member {from} did not arrive"));
            let (theirs, content) = messages.remove(&address).ok_or_else(late)?;
            assert_eq!(theirs, *purpose, "members of {} disagree on call {call}", self.name);
            all.push(content);
        }
        Ok(all)
    }

    fn tensors(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        assert_eq!((parts.len(), shapes.len()), (self.size, self.size));
        let all = self.swap(purpose, parts.into_iter().map(Content::Tensor).collect())?;
        let tensor = |(content, shape): (Content, &Vec<i64>)| match content {
            Content::Tensor(tensor) => {
                assert_eq!(tensor.size(), *shape, "{purpose}");
                tensor
            }
            Content::Bytes(_) => panic!("{purpose}: bytes in place of a tensor"),
        };
        Ok(all.into_iter().zip(shapes).map(tensor).collect())
    }
}

impl Group for Threads {
    fn index(&self) -> usize {
        self.index
    }

    fn size(&self) -> usize {
        self.size
    }

    fn all_gather(&self, purpose: &Purpose, mine: &Tensor, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.tensors(purpose, (0..self.size).map(|_| mine.copy()).collect(), shapes)
    }

    fn exchange(&self, purpose: &Purpose, parts: Vec<Tensor>, shapes: &[Vec<i64>]) -> Result<Vec<Tensor>> {
        self.tensors(purpose, parts.iter().map(Tensor::copy).collect(), shapes)
    }

    fn all_reduce(&self, purpose: &Purpose, mine: Tensor) -> Result<Tensor> {
        let all = self.all_gather(purpose, &mine, &vec![mine.size(); self.size])?;
        Ok(all.into_iter().reduce(|sum, next| sum + next).unwrap())
    }

    fn all_gather_bytes(&self, purpose: &Purpose, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let all = self.swap(purpose, (0..self.size).map(|_| Content::Bytes(mine.to_vec())).collect())?;
        let bytes = |content| match content {
            Content::Bytes(bytes) => bytes,
            Content::Tensor(_) => panic!("{purpose}: a tensor in place of bytes"),
        };
        Ok(all.into_iter().map(bytes).collect())
    }
}
