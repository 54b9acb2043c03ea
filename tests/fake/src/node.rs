//! A node that grants host memory.

use kvtide_tiering::api::Event;

#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Frames that it can still grant, by class; each grant has `slab_frames`, or what is left.
    pub frames: Vec<u32>,
    pub slab_frames: u32,
    /// Class and frames of each slab; `None`: it was returned.
    slabs: Vec<Option<(u8, u32)>>,
    /// Frames and ids that come back are granted again.
    pub reuses: bool,
    /// Slabs that came back.
    pub returned: Vec<u32>,
}

impl Node {
    pub fn new(frames: Vec<u32>, slab_frames: u32) -> Node {
        Node { frames, slab_frames, ..Node::default() }
    }

    pub fn grant(&mut self, class: u8) -> Event<'static> {
        let left = &mut self.frames[usize::from(class)];
        let frames = self.slab_frames.min(*left);
        if frames == 0 {
            return Event::SlabRefused { class };
        }
        *left -= frames;
        let free = self.slabs.iter().position(Option::is_none).filter(|_| self.reuses);
        let slab = free.unwrap_or_else(|| {
            self.slabs.push(None);
            self.slabs.len() - 1
        });
        self.slabs[slab] = Some((class, frames));
        Event::SlabGranted { class, slab: slab as u32, frames }
    }

    pub fn take_back(&mut self, slab: u32) {
        let (class, frames) = self.slabs[slab as usize].take().expect("a slab in use is returned, and once");
        self.returned.push(slab);
        if self.reuses {
            self.frames[usize::from(class)] += frames;
        }
    }
}
