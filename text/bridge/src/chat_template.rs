use crate::Failure;
#[repr(C)]
#[derive(Clone, Copy)]
pub struct RenderLimits { pub max_steps: u64, pub max_output_bytes: usize }
pub struct ChatTemplate;
impl ChatTemplate {
    pub fn parse(_s: &str) -> Result<Self, Failure> { Err(Failure::internal("later")) }
    pub fn render(&self, _c: &str, _n: &str, _l: RenderLimits) -> Result<String, Failure> { Err(Failure::internal("later")) }
}
